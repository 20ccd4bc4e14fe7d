"""Puts decisions into words: texts of waits and states, notices, alerts and statuses. Pure.

In the planner, only `pipeline` imports these modules, for its last stage: decisions contain kinds and facts.
"""
