"""A report as one HTML page: tables that sort, pictures, and where it all comes from."""
