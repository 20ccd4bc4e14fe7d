"""What is to be done about partitions: pure decisions on frozen records."""
