"""Whether a kernel can ship in a dtype: what it costs, where it is to be trusted, and reports of it."""
