"""Programming tasks whose answers run in a sandbox."""
