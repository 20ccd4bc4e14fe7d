"""Process of a controller: its loop of rounds, its calls, and the start and end of its parts."""
