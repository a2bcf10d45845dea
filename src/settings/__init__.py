"""From a composed configuration to built objects: resolvers, checks, secrets."""
