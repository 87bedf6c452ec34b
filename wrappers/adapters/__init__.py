"""Environments of other libraries as text; each file imports its library only when it is used."""
