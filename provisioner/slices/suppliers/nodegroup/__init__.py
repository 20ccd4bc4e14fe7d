"""TPUNodeGroups as node pools, on clusters that run on Compute Engine without GKE.

They are made and deleted through the Kubernetes API; the controller of node groups turns them into machines. Of that
product only the types of its API are known here.
"""
