"""Texts as unpleasant as a model can make them."""

NASTY = [
    "<script>document.title = 'owned'</script>",
    "</script><img src=x onerror=\"document.title='owned'\">",
    "<!-- <script> --> ]]> &lt;b&gt; &amp;",
    "\u202eright to left\u202c \u200f \u2066isolated",
    "NUL \0 bell \a escape \x1b[31m \x7f \x85 \u2028 line",
    "broken letters \ufffd \ufeff \U0001f9ee 数学 ∑",
    "",
    "long " + "0123456789 " * 20_000,
]
