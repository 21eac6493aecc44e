"""What is read, written and printed: text for people, HTML pages, objects by import path."""
