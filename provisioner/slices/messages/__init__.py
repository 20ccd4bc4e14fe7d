"""Creates the texts about decisions: reasons for waits and states, notices, alerts and statuses. Pure.

In the planner, only the last stage of `pipeline` uses these modules, so creates and deletes do not depend on them.
"""
