"""Creates the texts about decisions: reasons of waits and states, notices, alerts and statuses. Pure.

In the planner, only the last stage of `pipeline` imports these modules, so decisions do not depend on the texts.
"""
