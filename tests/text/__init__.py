"""Reading the text of the standard: parsing, checks, flattening, printing."""
