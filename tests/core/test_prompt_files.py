"""Files of prompts: what each line becomes, and the sentence for each line that is none."""

import pytest

from core.errors import UsageError
from core.prompt_files import GivenPrompt, Message, read_prompts, read_whole


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_form_of_a_json_line_is_read(tmp_path):
    path = written(
        tmp_path,
        "p.jsonl",
        '{"prompt": "one", "id": 7}\n\n{"text": "two\\nlines"}\r\n{"token_ids": [1, 2, 3]}\n  '
        ' \n{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u",'
        ' "name": "n"}]}',
    )
    assert read_prompts(path) == [
        GivenPrompt(f"{path}:1", text="one"),
        GivenPrompt(f"{path}:3", text="two\nlines"),
        GivenPrompt(f"{path}:4", token_ids=(1, 2, 3)),
        GivenPrompt(f"{path}:6", messages=(Message("system", "s"), Message("user", "u"))),
    ]


def test_any_other_file_is_a_prompt_a_line_whatever_separators_the_line_holds(tmp_path):
    path = written(
        tmp_path,
        "p.txt",
        "\ufeff  first \n\n \t\nform\ffeed and\u2028separator\r\n{not json}",
    )
    assert [prompt.text for prompt in read_prompts(path)] == [
        "  first ",
        "form\ffeed and\u2028separator",
        "{not json}",
    ]
    assert [prompt.source for prompt in read_prompts(path)] == [
        f"{path}:{line}" for line in (1, 4, 5)
    ]


def test_a_whole_file_is_one_prompt_with_every_line_of_it(tmp_path):
    path = written(tmp_path, "p.txt", "a\n\nb\n")
    assert read_whole(path).text == "a\n\nb\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "Expected `object`"),
        ('["a"]', "Expected `object`"),
        ("{}", "exactly one of prompt, text, token_ids, messages"),
        ('{"prompt": "a", "text": "b"}', "exactly one of"),
        ('{"prompt": 5}', "got `int` - at `$.prompt`"),
        ('{"text": null}', "exactly one of"),
        ('{"token_ids": "1 2"}', "got `str` - at `$.token_ids`"),
        ('{"token_ids": [1, true]}', "`$.token_ids[1]`"),
        ('{"token_ids": [1, 2.0]}', "`$.token_ids[1]`"),
        ('{"messages": []}', "`$.messages`"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}',
            "missing required field `role`",
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
            "`$.messages[0].content`",
        ),
    ],
)
def test_a_line_that_is_no_prompt_is_named_by_file_and_line(tmp_path, line, sentence):
    path = written(tmp_path, "p.jsonl", '{"prompt": "fine"}\n\n' + line + "\n")
    with pytest.raises(UsageError) as refused:
        read_prompts(path)
    assert f"{path}:3: " in str(refused.value)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_a_file_without_prompts_or_that_is_no_text_or_is_not_there_gets_a_sentence(tmp_path, name):
    with pytest.raises(UsageError, match="no prompts; expected one"):
        read_prompts(written(tmp_path, name, "\n  \n"))
    with pytest.raises(UsageError, match=r":[12]: is not UTF-8 text from here on"):
        read_prompts(written(tmp_path, name, b'{"prompt": "a"}\n\xff\xfe'))
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "nowhere.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path)
