"""What runs inside the sandbox: in the zygote, and in every child of it.

These modules are not imported by the parent for their effects; their source is sent to a bare interpreter
(see ``bundle.py``). So they use the standard library and each other, and nothing else.
"""
