"""Reports and charts. Nothing here is imported before it is asked for: charts need Altair."""
