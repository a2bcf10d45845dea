"""Convert a composed configuration to built objects: resolvers, checks, options of papers and methods."""
