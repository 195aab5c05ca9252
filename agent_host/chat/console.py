"""The live face: prompt_toolkit's input line and a few live lines at the bottom, the terminal's own scrollback above.

One repaint does everything: it erases the live lines, prints pending output, and draws the live lines again, as one
frame for the only `FrameWriter`. There is at most one in 50 ms, and none while a frame is still being written. Nothing
above the live lines is ever touched.

A question accepts only keys that were typed after it was shown. It is shown when its frame is written; keys typed until
then go into the line that the person was writing. If the person is typing, there is a pause first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, cast

from prompt_toolkit import Application
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import ThreadedCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import BufferControl, ConditionalContainer, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenuControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from agent_host.chat import LEAVES_WITHIN_S, Face, Frame
from agent_host.chat.input_line import ChatCompleter, named_picture
from agent_host.chat.paper import INDENT
from agent_host.display_text import count_noun, escape, one_line
from agent_host.terminal import CYAN, DIM, FENCE, cells, cut, render, wrap, wrap_coloured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent

    from agent_host.chat import Choice
    from agent_host.chat.conversation import Conversation

REPAINT_S: Final = 0.05
_PAUSE_S: Final = 0.4
_FRAME_CHARS: Final = 32 * 1024
_SLOW_S: Final = 0.1
_SLOW_FRAME_CHARS: Final = 2 * 1024
"""Limited because typed keys are shown only after the previous frame."""
_ROOM_AGAIN_CHARS: Final = 128 * 1024
_INPUT_ROWS: Final = 10
_PICKED_ROWS: Final = 10
_FULL_LINE_ROWS: Final = 4
_TICK_S: Final = 1.0
_STYLE: Final = {
    "prompt": "bold",
    "ask": "bold ansiyellow",
    "hint": "ansibrightblack",
    "chosen": "reverse",
    "completion-menu": "noinherit",
    "completion-menu.completion.current": "reverse",
    "completion-menu.meta.completion": "noinherit ansibrightblack",
    "completion-menu.meta.completion.current": "reverse",
}
_USUAL_TITLE: Final = "agent-host"
_RENDERED_CHARS: Final = 1024
_TAIL_CHARS: Final = 4096
_MOST_ROWS: Final = 12
_QUEUED_SHOWN: Final = 3
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class _Asked:
    def __init__(self, prompt: str, keys: str) -> None:
        self.prompt = prompt
        self.keys = keys
        self.is_armed = False
        self.is_drawn = False
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class _Typed:
    def __init__(self, label: str, choices: Sequence[Choice] | None = None) -> None:
        self.label = label
        self.choices = choices
        self.at = 0
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()


class _PacedApplication(Application[None]):
    """Draws a frame only after the previous one is written."""

    console: Console

    def _redraw(self, render_as_done: bool = False) -> None:
        if self.console.may_draw or render_as_done:
            with self.console.frame():
                super()._redraw(render_as_done)

    def _on_resize(self) -> None:
        self.console.note_resize()
        super()._on_resize()


class Console(Face):
    """See the module; a `Face`. `source` and `fd` are the terminal's input and output."""

    def __init__(self, workspace: str, history: History, *, styled: bool, source: Input | None = None, fd: int = 1):
        super().__init__(fd)
        self._workspace = workspace
        self._styled = styled
        self._live_rows: list[str] = []
        self._is_due = False
        self._asked: _Asked | None = None
        self._typed: _Typed | None = None
        self._draft: Document | None = None
        self._last_key = 0.0
        self._title = ""
        self._is_leaving = False
        self._frame = Frame(fd, self._writer.write)
        self._output = Vt100_Output(
            cast("TextIO", self._frame),  # it has every member of a stream that is used
            self._size,
            term=os.environ.get("TERM"),
            enable_cpr=False,
        )
        self._buffer = Buffer(
            multiline=True,
            history=history,
            completer=ThreadedCompleter(ChatCompleter(workspace)),
            complete_while_typing=Condition(self._completes),
        )
        self._app = self._application(source)

    # Face

    def refresh(self) -> None:
        """See Face."""
        self._app.invalidate()

    async def key(self, prompt: str, keys: str) -> str:
        """See Face."""
        asked = self._asked = _Asked(prompt, keys)
        self.refresh()
        try:
            return await asked.answer
        finally:
            if self._asked is asked:
                self._asked = None
            self.refresh()

    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """See Face."""
        del lines  # the input line accepts several anyway
        return await self._type(_Typed(prompt), initial)

    async def pick(self, title: str, choices: Sequence[Choice]) -> str | None:
        """See Face."""
        return await self._type(_Typed(f"{title} ", choices), "")

    async def _type(self, typed: _Typed, initial: str) -> str | None:
        if self._typed is not None and not self._typed.answer.done():
            self._typed.answer.set_result(None)
            await asyncio.sleep(0)
        self._typed, self._draft = typed, self._buffer.document
        self._put(Document(initial))
        try:
            return await typed.answer
        finally:
            if self._typed is typed:
                self._typed = None
                self._put(self._draft or Document())

    def _put(self, document: Document) -> None:
        self._buffer.set_document(document, bypass_readonly=True)
        self._last_key = 0.0  # set by the program, not typed
        self.refresh()

    def call_attention(self, title: str) -> None:
        """See Face."""
        if title:
            self._output.bell()
        if title != self._title:
            self._title = title
            self._output.set_title(title or _USUAL_TITLE)
        self.refresh()

    def leave(self) -> None:
        """See Face."""
        self._is_leaving = True
        if self._app.is_running and not (self._app.future is not None and self._app.future.done()):
            self._app.exit()

    # The program's side

    async def run(self) -> None:
        """See Face."""
        self._live = LiveArea(self.chat)
        ticking = asyncio.ensure_future(self._tick())
        try:
            if not self._is_leaving:
                await self._app.run_async(set_exception_handler=False, handle_sigint=False)
        except EOFError:
            pass
        finally:
            ticking.cancel()

    def close(self) -> None:
        """See Face."""
        text, self._pending = "".join(self._pending), []
        self._room.set()
        self._frame.write(text.replace("\n", "\r\n"))
        if self._title:
            self._output.set_title(_USUAL_TITLE)
            self._output.flush()
        self._frame.flush()
        self._writer.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self.chat.is_busy:
                self.refresh()

    # Frames

    @property
    def may_draw(self) -> bool:
        """True if a frame can be drawn now; else one is drawn once that is so."""
        self._is_due = not self._writer.is_idle
        return not self._is_due

    @contextlib.contextmanager
    def frame(self) -> Iterator[None]:
        """Make everything written in the block one frame."""
        self._frame.is_open = True
        try:
            yield
        finally:
            self._frame.is_open = False
            self._output.flush()
            self._frame.flush()
            self._note_drawn()

    def note_resize(self) -> None:
        """Account for rows that the terminal wraps when it becomes narrower."""
        renderer = self._app.renderer
        screen, columns = renderer.last_rendered_screen, self._size().columns
        if screen is None:
            return
        rows = 0
        cursor = renderer._cursor_pos  # noqa: SLF001  the only place that has it
        for at in range(cursor.y):
            used = max((x + 1 for x, char in screen.data_buffer[at].items() if char.char.strip()), default=0)
            rows += max(1, -(-used // columns))
        rows += cursor.x // columns
        renderer._cursor_pos = cursor._replace(y=rows)  # noqa: SLF001

    def _begin_frame(self) -> None:
        size = self._size()
        self._live_rows = self._live.rows(size.columns, size.rows)
        self._print_pending()

    def _print_pending(self) -> None:
        """Print pending output above the live lines, in parts if there is much."""
        if not self._pending:
            return
        text = "".join(self._pending)
        end, most = len(text), _FRAME_CHARS if self._writer.last_frame_s < _SLOW_S else _SLOW_FRAME_CHARS
        if end > most:
            end = text.rfind("\n", 0, most) + 1 or most
        self._pending = [text[end:]] if end < len(text) else []
        self._pending_chars = len(text) - end
        if self._pending_chars <= _ROOM_AGAIN_CHARS:
            self._room.set()
        self._app.renderer.erase(leave_alternate_screen=False)
        self._output.write_raw(text[:end].replace("\n", "\r\n"))

    def _note_drawn(self) -> None:
        if self._asked is not None:
            self._asked.is_drawn = not self._pending
        if self._pending:
            self._app.invalidate()
        if self._writer.is_idle:
            self._on_idle()

    def _on_idle(self) -> None:
        """Act on a frame that was written."""
        if self._is_due:
            self._is_due = False
            self._app.invalidate()
        asked = self._asked
        if asked is not None and asked.is_drawn and not asked.is_armed:
            self._arm(asked)
        if self._writer.has_failed:
            self._room.set()
            self.leave()

    def _arm(self, asked: _Asked) -> None:
        """Accept keys for the question from now on; earlier ones go into the person's line."""
        if self._asked is not asked or not self._app.is_running:
            return
        with set_app(self._app):
            for press in self._app.input.read_keys():
                self._app.key_processor.feed(press)
            self._app.key_processor.process_keys()
        wait_s = self._last_key + _PAUSE_S - time.monotonic()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._arm, asked)
        else:
            asked.is_armed = True
            self.refresh()

    def _size(self) -> Size:
        size = self._terminal_size()
        return Size(rows=size.lines, columns=size.columns)

    # Layout

    def _application(self, source: Input | None) -> _PacedApplication:
        app = _PacedApplication(
            layout=self._layout(),
            key_bindings=self._bindings(),
            input=source,
            output=self._output,
            style=Style.from_dict(_STYLE),
            color_depth=None if self._styled else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            min_redraw_interval=REPAINT_S,
            max_render_postpone_time=None,
        )
        app.console = self
        app.ttimeoutlen = 0.05
        app.timeoutlen = 0.1
        app.before_render += lambda _: self._begin_frame()
        return app

    def _layout(self) -> Layout:
        asks, picks, armed = map(Condition, (self._is_asking, self._is_picking, self._is_armed))
        self._input = Window(
            BufferControl(self._buffer, input_processors=[BeforeInput(self._label, style="class:prompt")]),
            height=lambda: Dimension(min=1, max=_INPUT_ROWS),
            wrap_lines=True,
            dont_extend_height=True,
        )
        question = Window(FormattedTextControl(self._question_text), wrap_lines=True, dont_extend_height=True)
        picked = Window(FormattedTextControl(self._picked_text), dont_extend_height=True)
        menu = Window(
            CompletionsMenuControl(),
            height=Dimension(min=1, max=8),
            dont_extend_height=True,
            style="class:completion-menu",
        )
        hint = Window(FormattedTextControl(self._hint), height=1)
        live = FormattedTextControl(lambda: ANSI("\n".join(self._live_rows)))
        completes = Condition(self._has_completions)
        parts = (
            (question, asks), (self._input, ~armed), (picked, picks), (menu, completes),
            (hint, ~completes & ~picks),
        )  # fmt: skip
        return Layout(
            HSplit([
                Window(live, dont_extend_height=True, height=lambda: len(self._live_rows)),
                *(ConditionalContainer(*part) for part in parts),
            ]),
            focused_element=self._input,
        )  # fmt: skip

    def _has_completions(self) -> bool:
        """False also before the first one is found: a menu of none cannot be drawn."""
        return self._buffer.complete_state is not None and bool(self._buffer.complete_state.completions)

    def _label(self) -> StyleAndTextTuples:
        return [("class:ask" if self._typed else "class:prompt", self._typed.label if self._typed else "› ")]

    def _question_text(self) -> StyleAndTextTuples:
        asked = self._asked
        if asked is None:
            return []
        waits = "" if asked.is_armed else "  (keys count once you stop typing)"
        prompt = "\n".join(wrap(asked.prompt, self.columns))
        return [("class:ask", prompt), ("class:hint", waits if asked.is_drawn else "")]

    def _picked_text(self) -> StyleAndTextTuples:
        typed = self._typed
        found = [] if typed is None else self._found()
        if typed is None or not found:
            return [("class:hint", "nothing with this in it")]
        typed.at = min(typed.at, len(found) - 1)
        first = max(0, min(typed.at - _PICKED_ROWS // 2, len(found) - _PICKED_ROWS))
        parts: StyleAndTextTuples = []
        for place, choice in enumerate(found[first : first + _PICKED_ROWS], first):
            line = cut(choice.line, self.columns - 2)
            parts.append(("class:chosen" if place == typed.at else "", f"{line}\n"))
        chosen = found[typed.at].line
        is_shown = cells(chosen) <= self.columns - 2
        rest = "" if is_shown else "\n".join(wrap(chosen, self.columns - 2)[:_FULL_LINE_ROWS]) + "\n"
        keys = cut(f"{typed.at + 1} of {len(found)} · Enter chooses · Esc leaves", self.columns)
        return [*parts, ("class:hint", rest + keys)]

    def _hint(self) -> StyleAndTextTuples:
        chat = self.chat
        keys = "Enter queues · Alt+Enter steers · Esc stops" if chat.is_busy else "/help · @path · Ctrl-D leaves"
        if self._typed is not None:
            hint = "Enter sends · Ctrl-J a new line · Esc goes back"
        elif self._is_armed():
            hint = "the keys above answer · Esc stops the task"
        else:
            mode = [f"{name} {value}" for name, value in chat.mode.items() if name != "sandbox"]
            hint = " · ".join([keys, *mode, *(["planning"] if chat.is_planning else [])])
        return [("class:hint", cut(hint, self.columns))]

    def _is_asking(self) -> bool:
        return self._asked is not None and self._typed is None

    def _is_armed(self) -> bool:
        return self._is_asking() and self._asked is not None and self._asked.is_armed

    def _is_picking(self) -> bool:
        return self._typed is not None and self._typed.choices is not None

    def _completes(self) -> bool:
        text = self._buffer.document.text_before_cursor
        return self._typed is None and (text.startswith("/") or "@" in text.rpartition(" ")[2])

    def _found(self) -> list[Choice]:
        wanted = self._buffer.text.casefold().split()
        choices = () if self._typed is None or self._typed.choices is None else self._typed.choices
        return [one for one in choices if all(word in one.line.casefold() for word in wanted)]

    # Keys

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        armed, picks = Condition(self._is_armed), Condition(self._is_picking)
        writes, edits = ~armed, Condition(lambda: self._typed is not None) & ~picks

        self._bind_keys_of_questions(keys, armed)
        keys.add("c-m", filter=writes)(lambda _: self._enter())
        keys.add("c-j", filter=writes)(lambda event: event.current_buffer.insert_text("\n"))
        keys.add("escape", "c-m", filter=writes)(lambda _: self._enter(steers=True))
        keys.add("c-x", "c-e", filter=writes)(lambda event: event.current_buffer.open_in_editor())
        keys.add("c-v", filter=writes)(lambda _: self.chat.spawn(self._insert_picture()))
        keys.add("up", filter=picks)(lambda _: self._move(-1))
        keys.add("down", filter=picks)(lambda _: self._move(1))
        keys.add("up", filter=edits)(lambda event: event.current_buffer.cursor_up())  # past prompts are not answers
        keys.add("down", filter=edits)(lambda event: event.current_buffer.cursor_down())

        @keys.add(Keys.BracketedPaste, filter=writes)
        def _(event: KeyPressEvent) -> None:
            data = event.data.replace("\r\n", "\n").replace("\r", "\n")
            event.current_buffer.insert_text(named_picture(data, self._workspace) or data)

        self._buffer.on_text_changed += self._note_key
        return keys

    def _bind_keys_of_questions(self, keys: KeyBindings, armed: Condition) -> None:
        acts: dict[str, Callable[[], object]] = {
            Keys.Escape: self._escape,
            Keys.ControlC: self._ctrl_c,
            Keys.ControlD: self._ctrl_d,
            Keys.ControlO: lambda: self.chat.spawn(self.chat.unfold()),
            Keys.ControlT: lambda: self.chat.unfold_thinking(),  # noqa: PLW0108  the conversation comes later
        }
        if sys.platform != "win32":
            acts[Keys.ControlZ] = self._suspend

        @keys.add(Keys.Any, filter=armed, eager=True)
        @keys.add(Keys.BracketedPaste, filter=armed, eager=True)
        def _(event: KeyPressEvent) -> None:
            waiting, key = event.key_processor.input_queue, event.key_sequence[0].key
            if waiting or key == Keys.BracketedPaste:  # keys that arrive at once: pasted, or an unknown key
                waiting.clear()
                self._output.bell()
            else:
                acts.get(key, lambda: self._answer_key(event.data))()

        for key, act in acts.items():
            keys.add(key)(lambda _, act=act: act())

    def _note_key(self, _: Buffer) -> None:
        self._last_key = time.monotonic()

    def _answer_key(self, key: str) -> None:
        asked = self._asked
        if asked is not None and len(key) == 1 and key.lower() in asked.keys and not asked.answer.done():
            asked.answer.set_result(key.lower())
        else:
            self._output.bell()

    def _enter(self, *, steers: bool = False) -> None:
        buffer, typed = self._buffer, self._typed
        if typed is not None and typed.choices is not None:
            found = self._found()
            self._answer(found[min(typed.at, len(found) - 1)].value if found else None)
            return
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
            return
        if buffer.document.text_before_cursor.endswith("\\") and typed is None:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        text = buffer.text
        if typed is not None:
            self._answer(text)
            return
        if not text.strip():
            return
        buffer.append_to_history()
        buffer.reset()
        if steers and self.chat.is_busy:
            self.chat.spawn(self.chat.steer(text))
        else:
            self.chat.submit(text)

    def _answer(self, text: str | None) -> None:
        if self._typed is not None and not self._typed.answer.done():
            self._typed.answer.set_result(text)

    def _escape(self) -> None:
        if self._typed is not None:
            self._answer(None)
        elif self._buffer.complete_state is not None:
            self._buffer.cancel_completion()
        else:
            self.chat.interrupt()

    def _ctrl_c(self) -> None:
        if self._typed is not None:
            self._answer(None)
        elif self._buffer.text and not self._is_asking():
            self._buffer.reset()
        else:
            self.stop_or_leave()

    def _ctrl_d(self) -> None:
        if self._typed is not None:
            self._answer(None)
        elif self._buffer.text and not self._is_asking():
            self._buffer.delete()
        else:
            self.leave()

    def _move(self, by: int) -> None:
        if self._typed is not None:
            self._typed.at = max(0, self._typed.at + by)

    async def _insert_picture(self) -> None:
        mention = await self.chat.picture_of_clipboard()
        if mention is not None:
            self._buffer.insert_text(mention)

    def _suspend(self) -> None:
        if sys.platform != "win32":
            # Only this process stops; the session continues, as for any client that does not read.
            def stop() -> None:
                self._writer.drain(LEAVES_WITHIN_S)
                os.kill(os.getpid(), signal.SIGTSTP)

            run_in_terminal(stop)


class LiveArea:
    """The live lines of a conversation."""

    def __init__(self, chat: Conversation) -> None:
        self._chat = chat
        self._rendered: tuple[str, int, list[str]] = ("", 0, [])

    def rows(self, columns: int, height: int) -> list[str]:
        """The rows, each at most `columns` wide; the last is the status of the running task."""
        chat = self._chat
        most = max(3, min(_MOST_ROWS, height // 3))
        rows = (self._growing(columns) or list(self._running(columns)))[-most:]
        rows += [chat.paper.style(DIM, one) for one in self._queued(columns)]
        if chat.is_busy:
            rows += self._status(columns)
        return rows

    def _status(self, columns: int) -> list[str]:
        chat = self._chat
        turn = _SPINNER[int(chat.activity.seconds) % len(_SPINNER)] if chat.paper.styled else "*"
        first, *rest = wrap(f"{turn} {chat.activity.line(columns - 2)}", columns, len(INDENT))
        rows = [first, *([cut(INDENT + " ".join(one.strip() for one in rest), columns)] if rest else [])]
        return [chat.paper.style(CYAN, row) for row in rows]

    def _growing(self, columns: int) -> list[str]:
        text = self._chat.answer.growing
        if not text.strip():
            return []
        room = min(columns, self._chat.paper.columns) - len(INDENT)
        if len(text) > _RENDERED_CHARS or FENCE.match(text) is not None:
            rows = wrap(escape(text[-_TAIL_CHARS:]), room)
        elif self._rendered[:2] == (text, room):
            rows = self._rendered[2]
        else:
            rows = render(escape(text), min(room, 100), styled=self._chat.paper.styled).rstrip("\n").split("\n")
            self._rendered = (text, room, rows)
        return [f"{INDENT}{row}" for row in rows]

    def _running(self, columns: int) -> Iterator[str]:
        for call in list(self._chat.activity.calls.values())[-2:]:
            for line in () if call.is_asked else call.output.tail:
                row = wrap_coloured(line, columns - len(INDENT))[0]
                yield INDENT + (row if self._chat.paper.styled else cut(one_line(line, 400), columns - 2))

    def _queued(self, columns: int) -> Iterator[str]:
        waiting = list(self._chat.queued.values())
        for text in waiting[:_QUEUED_SHOWN]:
            yield cut(f"queued: {one_line(text, 400)}", columns)
        if len(waiting) > _QUEUED_SHOWN:
            yield f"and {count_noun(len(waiting) - _QUEUED_SHOWN, 'prompt')} more (/queue)"
