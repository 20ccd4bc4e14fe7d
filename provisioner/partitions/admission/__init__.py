"""What becomes of pods that ask for IPUs, when they are created and changed: reviews in, answers out (pure)."""
