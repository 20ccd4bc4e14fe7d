"""The REST API that init containers and people ask for partitions: who may ask, what is answered."""
