"""The answer for somebody with several sites: what to expect on another one, which method to take, and the model."""
