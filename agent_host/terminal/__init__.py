"""Text for a terminal, shared by every command that shows a session: styles, Markdown, questions."""
