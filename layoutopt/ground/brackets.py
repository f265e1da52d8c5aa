"""Text with brackets in it, taken apart where no bracket is open."""


def split(text: str, brackets: str = "([{)]}") -> list[str]:
    """Parts between the commas outside brackets, of which the first half opens and the second closes."""
    parts, depth, half = [""], 0, len(brackets) // 2
    for character in text:
        depth += (character in brackets[:half]) - (character in brackets[half:])
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    return parts if parts[-1] else parts[:-1]
