"""Everything lossy on purpose: rules that let a draft model's distribution change the text, and how much they change."""
