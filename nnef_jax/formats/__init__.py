"""Other writers' files read into the same flat graph: one package for each dialect or format."""
