"""Others' environments in words, each in a small file that imports the other library only when it is used."""
