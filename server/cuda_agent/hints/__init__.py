"""Facts turned into short sentences: occupancy, launch feasibility, access patterns, changes. Pure functions."""
