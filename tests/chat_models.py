"""Small tokenizers with chat templates that behave as those of published models do. The Jinja texts are our own."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

WORDS = "Please reason step by step and put your final answer within the box. What is the sum of user and assistant?"

# Turns in <|im_start|>, a default system prompt, and options for thoughts, as Qwen3 has them.
CHATML = """
{%- if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- for m in messages if m.role != 'system' %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
{%- else %}{{ m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

# No generation prompt, whatever is asked for, as old copies of ChatML have it.
WITHOUT_GENERATION_PROMPT = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"""

# The assistant begins behind [/INST], and system prompts are refused or joined to the question, as in Mistral's.
MISTRAL = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('Conversation roles must alternate user/assistant/user/…') }}
{%- elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{%- else %}{{ ' ' + m.content + eos_token }}{% endif %}
{%- endfor %}"""

# System prompts are refused, content is trimmed, and a turn ends with another token than a text, as in Gemma's.
GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# System prompts are left out.
DEAF = """
{%- for m in messages if m.role != 'system' %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# The day is written into the system prompt unless it is given, as in Llama 3.2's.
LLAMA = """
{{- bos_token }}
{%- if not date_string is defined %}
{%- if strftime_now is defined %}{% set date_string = strftime_now('%d %b %Y') %}
{%- else %}{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}{{ '<|eot_id|>' }}
{%- for m in messages if m.role != 'system' %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# The day can't be given, and the last turn ends with another token than those before, as in gpt-oss'.
HARMONY = """
{{- '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ '<|start|>developer<|message|># Instructions\n\n' + m.content + '<|end|>' }}
{%- elif m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- elif loop.last and not add_generation_prompt %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

# The generation prompt opens thoughts, as that of DeepSeek-R1 does, and thoughts of earlier turns are left out.
DEEPSEEK = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- else %}{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"""

# A turn of the assistant has no end of its own: the next role ends it, as in GLM's.
GLM = """
{{- '[gMASK]<sop>' }}
{%- for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

SPECIAL = {
    CHATML: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    WITHOUT_GENERATION_PROMPT: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    DEAF: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    MISTRAL: ["<s>", "</s>", "[INST]", "[/INST]"],
    GEMMA: ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    LLAMA: ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    HARMONY: ["<|endoftext|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"],
    DEEPSEEK: ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
    GLM: ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"],
}
"""Chat template → special tokens of its model, the begin and the end of a text among them."""
ENDS = {
    CHATML: "<|im_end|>", WITHOUT_GENERATION_PROMPT: "<|im_end|>", DEAF: "<|im_end|>", MISTRAL: "</s>",
    GEMMA: "<end_of_turn>", LLAMA: "<|eot_id|>", HARMONY: "<|return|>", DEEPSEEK: "<｜end▁of▁sentence｜>",
    GLM: "<|user|>",
}  # fmt: skip
"""Chat template → the token that ends the assistant's turn."""
NAMES = [
    "chatml",
    "without_generation_prompt",
    "deaf",
    "mistral",
    "gemma",
    "llama",
    "harmony",
    "deepseek",
    "glm",
]
"""Names of the chat templates, in the order of `SPECIAL`, for the ids of tests."""


@lru_cache
def chat_model(chat_template):
    """A byte-level tokenizer with the special tokens of a chat template, and `<think>`, which is added as a word."""
    special = SPECIAL[chat_template]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([WORDS] * 4, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(
        [AddedToken(mark, special=False, normalized=False) for mark in ("<think>", "</think>", "\n\n")]
    )
    begin = next((token for token in special if "begin" in token or token in ("<s>", "<bos>")), None)
    end = next(token for token in special if "end" in token or token in ("</s>", "<eos>"))
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end)
    made.chat_template = chat_template
    made.name_or_path = "model"
    return made
