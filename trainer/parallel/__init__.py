"""The trainer on several ranks: the parts of the one step, and what carries integers and bytes between them."""
