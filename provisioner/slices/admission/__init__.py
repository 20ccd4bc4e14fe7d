"""What is said of workloads, and changed in them, when they are created. Pure: reviews and settings are handed in.

`validation` says what is wrong with an object, `shapes` what is wrong with pods that the provisioner does not serve,
`jobs` changes selectors of Jobs.
"""
