"""The files of a report: pages, Markdown, JUnit XML and SARIF, each a function of the report as JSON data."""
