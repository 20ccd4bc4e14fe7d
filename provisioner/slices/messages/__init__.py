"""Creates the texts about decisions: reasons for waits and states, notices, alerts and statuses. Pure.

In the planner, only `pipeline` uses these modules, after it has decided on creates and deletes.
"""
