"""The built-in problems: TOML files with their loader, and the grammar that makes problems of level 0."""
