"""The cloud boundary: GKE's node pools in our own types.

`protocol` is what the rest of the program sees, `client` is the real thing, `decorators` adds metrics and retries, and
`errors` says what each failure means. No type of Google's libraries leaves this package.
"""
