"""The TPU environment of pods: which worker each is, who the others are, and the grid of chips they share.

Decisions are pure: a pod and its owner, as raw JSON, go in; a patch and warnings come out.
"""
