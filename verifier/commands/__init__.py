"""The command line, the pytest plugin and the pages that are generated."""
