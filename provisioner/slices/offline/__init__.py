"""What the decision would be for manifests that nobody has applied yet. Pure: texts and settings are handed in.

`documents` are manifests with the lines of their fields, `schema` says which fields are of a wrong type, `expand` makes
the pods that the controllers would make, `forecast` asks the decision about them, `places` tells which line a notice is
about.
"""
