// The one live stream of this browser. HTTP/1.1 allows six connections to a host, so tabs share a stream instead of
// holding one each. A closed stream is opened again with growing pauses; a tab can ask for that at once, after a login.
import { follow, type Told } from "./stream";

interface SharedScope {
  onconnect: ((event: MessageEvent) => void) | null;
}

const ports = new Set<MessagePort>();
let lastSnapshot: Told | null = null;
let lastSample: Told | null = null;

const stream = follow((told) => {
  if (told.kind === "snapshot") [lastSnapshot, lastSample] = [told, null];
  else if (told.kind === "sample") lastSample = told;
  else if (told.kind === "down") [lastSnapshot, lastSample] = [null, null];
  for (const port of ports) port.postMessage(told);
});

(self as unknown as SharedScope).onconnect = (event) => {
  const port = event.ports[0]!;
  ports.add(port);
  port.onmessage = (message: MessageEvent<string>) => {
    if (message.data === "bye") {
      ports.delete(port);
      if (ports.size === 0) stream.pause();
    } else if (message.data === "again") stream.again();
  };
  stream.again();
  if (lastSnapshot) port.postMessage(lastSnapshot);
  if (lastSample) port.postMessage(lastSample);
};
