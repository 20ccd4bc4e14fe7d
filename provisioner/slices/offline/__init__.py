"""What the decision would be about objects that nobody has applied yet. Pure: objects and settings are handed in.

`documents` are objects, with the lines of their fields where they come from a text, and what is found of them;
`reading` reads an object as the API server would show it, `expand` makes the pods that the controllers would make, and
`forecast` asks the decision about them. `assumed` has placeholders for settings that are required and not set. Not
handled: fields that do not exist or are of a wrong type, which the API server rejects; the latter count as absent.
"""
