"""Chat front ends and agents of other people against `stretto serve`, by configuration alone, as docs/guide/serving.md
tells it. Usage: front_ends_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository, by a Python
that has some of the packages llm, gradio, openai-agents and aider-chat; what is not there is skipped by name."""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import typing
import unittest

import cli_case
from cli_case import ROOT
from serve_case import WAIT, Server, ServeCase

MODEL_8M = ROOT / "checkpoints/debian-llama-8m"
NAME = MODEL_8M.name
TOOLS = ROOT / "tests/data/templates/qwen3.jinja"


def needs(module, package):
    return unittest.skipIf(importlib.util.find_spec(module) is None, f"the package {package} is not there")


class FrontEndsTest(ServeCase):
    """Each says what the server says, as it comes."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--dtype", "float32", model=str(MODEL_8M)))
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"

    def greedy(self, *messages, **more):
        body = {"messages": list(messages), "temperature": 0, **more}
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"]["content"]

    def command(self, *args, env, **more):
        env = {**os.environ, "HOME": str(self.tmp), "NO_COLOR": "1", **env}
        done = subprocess.run([sys.executable, "-m", *args], env=env, cwd=self.tmp, capture_output=True, text=True,
                              timeout=WAIT, stdin=subprocess.DEVNULL, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    @needs("llm", "llm")
    def test_llm(self):
        (self.tmp / "extra-openai-models.yaml").write_text(
            f"- model_id: stretto\n  model_name: {NAME}\n  api_base: {self.url}\n  api_key_name: stretto\n"
            "  supports_schema: true\n")
        env = {"LLM_USER_PATH": str(self.tmp)}
        self.command("llm", "keys", "set", "stretto", "--value", "none", env=env)
        want = self.greedy({"role": "user", "content": "gcc-doc:"}, max_tokens=24)
        before = self.server.metric("vllm:generation_tokens_total")
        for stream in ([], ["--no-stream"]):
            said = self.command("llm", "-m", "stretto", "-o", "temperature", "0", "-o", "max_tokens", "24", "gcc-doc:",
                                *stream, env=env)
            self.assertEqual(said.strip(), want.strip())
        self.assertGreater(self.server.metric("vllm:generation_tokens_total"), before)
        said = self.command("llm", "-c", "-o", "temperature", "0", "-o", "max_tokens", "24", "make-doc:", env=env)
        self.assertEqual(said.strip(), self.greedy(
            {"role": "user", "content": "gcc-doc:"}, {"role": "assistant", "content": want},
            {"role": "user", "content": "make-doc:"}, max_tokens=24).strip())
        schema = {"type": "object", "properties": {"section": {"enum": ["doc", "libs"]}}, "required": ["section"]}
        said = self.command("llm", "-m", "stretto", "--schema", json.dumps(schema), "gcc-doc:", env=env)
        self.assertIn(json.loads(said)["section"], ("doc", "libs"))

    @needs("gradio", "gradio")
    def test_gradio(self):
        import gradio
        from gradio_client import Client
        demo = gradio.load_chat(self.url, model=NAME, token="none", api_name="chat")
        self.addCleanup(demo.close)
        _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True)
        job = Client(url, verbose=False).submit({"text": "gcc-doc:", "files": []}, api_name="/chat")
        job.result(WAIT)
        pieces = job.outputs()
        self.assertGreater(len(pieces), 3)
        self.assertTrue(str(pieces[-1]).startswith(str(pieces[0])))

    @needs("aider", "aider-chat")
    def test_aider(self):
        """Its instructions are longer than the bundled models' contexts."""
        place = self.tmp / "model"
        shutil.copytree(MODEL_8M, place)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
        with Server("--dtype", "float32", "--served-model-name", NAME, "--max-num-seqs", 2, model=str(place)) as server:
            before = server.metric("vllm:generation_tokens_total")
            said = self.command(
                "aider", "--model", f"openai/{NAME}", "--message", "What is gcc-doc?", "--no-git", "--yes-always",
                "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--edit-format", "ask",
                env={"OPENAI_API_BASE": f"http://127.0.0.1:{server.port}/v1", "OPENAI_API_KEY": "none",
                     "AIDER_CHECK_UPDATE": "false"})
            self.assertGreater(server.metric("vllm:generation_tokens_total"), before, said)
            self.assertIn("Tokens:", said)


@needs("agents", "openai-agents")
class AgentsTest(ServeCase):
    """A program of the OpenAI Agents SDK: the model calls a tool, hears its answer, and says something."""

    def run_agent(self, api, stream, env):
        import agents
        from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_api
        set_default_openai_api(api)
        agents.set_default_openai_client(agents.AsyncOpenAI(base_url=env["OPENAI_BASE_URL"], api_key="none"), False)
        calls = []

        @function_tool
        def packages(section: typing.Literal["doc", "libs"], most: int) -> str:
            """Debian packages of a section."""
            calls.append((section, most))
            return "gcc-doc, make-doc"

        agent = Agent(name="Finder", instructions="Find packages.", tools=[packages], model=NAME,
                      model_settings=ModelSettings(tool_choice="required", max_tokens=700, temperature=0.7,
                                                   parallel_tool_calls=False))

        async def go():
            if not stream:
                return await Runner.run(agent, "Which packages document compilers?", max_turns=4), []
            result = Runner.run_streamed(agent, "Which packages document compilers?", max_turns=4)
            return result, [event async for event in result.stream_events()]

        result, events = asyncio.run(go())
        return calls, result, events

    def test_a_call_is_made_and_answered(self):
        os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
        with Server("--dtype", "float32", "--chat-template", TOOLS, "--reasoning-parser", "none",
                    model=str(MODEL_8M)) as server:
            env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/v1"}
            for api in ("responses", "chat_completions"):
                for stream in (False, True):
                    with self.subTest(api=api, stream=stream):
                        calls, result, events = self.run_agent(api, stream, env)
                        self.assertEqual(len(calls), 1)
                        section, most = calls[0]
                        self.assertIsInstance(section, str)
                        self.assertIsInstance(most, int)
                        kinds = [type(item).__name__ for item in result.new_items]
                        self.assertEqual(kinds[:2], ["ToolCallItem", "ToolCallOutputItem"], kinds)
                        self.assertIsInstance(result.final_output, str)  # the small model may say nothing
                        if stream:
                            self.assertGreater(len(events), 10)


if __name__ == "__main__":
    cli_case.main(__doc__)
