"""What there is, for people: one read model, from the snapshot and the plan of a round. Pure.

Page, commands and API show this and nothing else.
"""
