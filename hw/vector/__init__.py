"""The vector units turn the rows of one matrix product into the codes of the next."""
