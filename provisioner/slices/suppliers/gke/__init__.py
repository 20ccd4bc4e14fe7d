"""The cloud boundary: GKE's node pools in our own types.

`protocol` is what is asked of GKE, `client` is the real thing, `supplier` adds metrics, retries and workload policies,
and `errors` says what each failure means. No type of Google's libraries leaves this package.
"""
