"""What the decision would be about objects that nobody has applied yet. Pure: objects and settings are handed in.

`judge` finds what is wrong with one object, `forecast` plans many. `documents` are objects with the lines of their
fields, where they come from a text; `reading` reads an object as the API server would show it, `expand` makes the pods
that the controllers would make, `forecast` asks the decision about them, `places` tells which field a notice is about,
and `findings` are what comes of it. `assumed` has placeholders for settings that are required and not set. Not handled:
fields that do not exist or are of a wrong type, which the API server rejects; the latter count as absent.
"""
