"""Write the report as one offline HTML file: did training help, tables, figures, every recorded response."""
