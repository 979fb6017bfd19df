"""The order in which a kernel adds up, as a tree."""
