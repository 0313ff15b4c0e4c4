//! The socket in a data folder, where the process that has the folder open answers the others.
//! Only the folder's user can connect.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

const NAME: &str = "socket";

/// Bytes of a path that every system takes as an address. Linux takes 107.
const LONGEST: usize = 100;

/// Processes that may wait until they are accepted.
const BACKLOG: u32 = 128;

/// Listens in the folder, which this process has locked: what lies there is of a process that has
/// ended. Needs the runtime.
pub(super) fn listen(dir: &Path) -> io::Result<UnixListener> {
    remove(dir)?;
    let address = Address::in_folder(dir)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(&address.path)?;
    // No process can connect before it listens.
    fs::set_permissions(&address.path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)
}

/// Connects to the process that listens in the folder.
pub(super) async fn connect(dir: &Path) -> io::Result<UnixStream> {
    let address = Address::in_folder(dir)?;
    UnixStream::connect(&address.path).await
}

/// Removes the socket, if there is one.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A path that is short enough for an address.
struct Address {
    path: PathBuf,
    /// The path goes through it.
    _folder: Option<File>,
}

impl Address {
    fn in_folder(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        if path.as_os_str().len() <= LONGEST {
            return Ok(Self {
                path,
                _folder: None,
            });
        }
        let folder = File::open(dir)?;
        Ok(Self {
            path: format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()).into(),
            _folder: Some(folder),
        })
    }
}
