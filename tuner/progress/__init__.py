"""What a tune tells while it runs, and how a terminal shows it."""
