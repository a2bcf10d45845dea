"""Shell: objects from a composed configuration, with resolvers, checks, and options of papers and methods."""
