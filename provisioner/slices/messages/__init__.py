"""Creates the texts about decisions: reasons of waits and states, notices, alerts and statuses. Pure.

In the planner, only `pipeline` imports these modules, for its last stage. Decisions have kinds and facts, but no texts.
"""
