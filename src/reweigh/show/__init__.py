"""Reports and charts. Nothing here is imported before it is needed: charts need Altair."""
