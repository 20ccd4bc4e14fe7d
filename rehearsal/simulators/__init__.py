"""Google's services, played on one machine by independent readings of Google's documents."""
